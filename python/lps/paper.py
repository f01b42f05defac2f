"""The numbers that the paper prints (Wang et al., ICDM 2020), in percent: average accuracy over all tasks and, where it
has them, the accuracies of the tasks.

They come from the paper's own budget of epochs (its Table I) on its own splits and are no bound for shorter runs.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """A row of a table; averages are as printed, also where the tasks' mean differs in the last digit."""

    average: float
    tasks: tuple[float, ...] = ()


# Tables II to IV; their SM, IS and names in capitals are our single, si and names in small letters. Of mixed, section
# V-B. The tasks of permuted MNIST are in Table V, for LPS alone.
METHODS: dict[str, dict[str, Row]] = {
    "permuted-mnist": {
        "single": Row(98.80),
        "ewc": Row(96.81),
        "si": Row(97.52),
        "lwf": Row(68.22),
        "dgr": Row(90.73),
        "gem": Row(93.03),
        "packnet": Row(98.14),
        "lps": Row(98.58, (98.92, 98.68, 98.71, 98.64, 98.55, 98.61, 98.49, 98.51, 98.42, 98.23)),
    },
    "split-cifar": {
        "single": Row(75.14, (82.32, 75.40, 70.20, 75.90, 71.70, 75.30)),
        "ewc": Row(71.13, (71.23, 72.50, 69.25, 71.34, 67.52, 74.93)),
        "si": Row(74.97, (74.59, 74.28, 74.19, 75.54, 75.58, 75.62)),
        "lwf": Row(54.68, (40.32, 56.77, 48.60, 53.94, 60.04, 68.43)),
        "dgr": Row(63.61, (64.36, 62.01, 63.02, 67.34, 65.28, 59.64)),
        "gem": Row(66.05, (68.52, 65.34, 63.88, 70.12, 65.23, 63.23)),
        "packnet": Row(77.79, (82.33, 79.30, 73.90, 78.80, 74.30, 78.10)),
        "lps": Row(80.13, (82.97, 80.00, 76.50, 79.90, 78.40, 83.00)),
    },
    "split-rf": {
        "single": Row(81.15, (76.33, 73.50, 85.30, 85.60, 85.00)),
        "ewc": Row(37.01, (25.73, 35.32, 30.85, 45.81, 47.24)),
        "si": Row(42.63, (27.08, 40.72, 37.25, 50.66, 57.34)),
        "lwf": Row(27.75, (14.62, 20.37, 23.45, 33.58, 46.72)),
        "dgr": Row(48.27, (43.50, 49.37, 43.87, 50.25, 54.38)),
        "gem": Row(68.38, (67.24, 63.45, 68.53, 70.26, 72.44)),
        "packnet": Row(79.37, (78.15, 74.14, 82.56, 80.54, 81.45)),
        "lps": Row(81.22, (78.33, 77.55, 84.19, 82.63, 83.39)),
    },
    "mixed": {"lps": Row(89.22)},
}

# Tables V to VII by pattern and share of the earlier tasks' weights that is reused; of mixed, the text on Fig. 6.
SHARES: dict[str, dict[tuple[str, float], Row]] = {
    "permuted-mnist": {
        ("irregular", 0.0): Row(97.15, (98.92, 98.77, 98.47, 98.51, 98.58, 98.49, 98.29, 97.91, 97.78, 85.82)),
        ("irregular", 1.0): Row(98.38, (98.92, 98.56, 98.51, 98.39, 98.35, 98.24, 98.26, 98.19, 98.25, 98.14)),
        ("irregular", 0.9): Row(98.58, (98.92, 98.68, 98.71, 98.64, 98.55, 98.61, 98.49, 98.51, 98.42, 98.23)),
    },
    "split-cifar": {
        ("irregular", 0.0): Row(72.30, (82.97, 72.40, 64.20, 75.70, 68.90, 69.60)),
        ("irregular", 1.0): Row(79.10, (82.97, 79.70, 76.10, 80.50, 76.60, 78.70)),
        ("irregular", 0.92): Row(80.13, (82.97, 80.00, 76.50, 79.90, 78.40, 83.00)),
        ("column", 0.0): Row(67.54, (82.04, 68.80, 56.50, 71.00, 63.90, 63.00)),
        ("column", 1.0): Row(78.94, (82.04, 80.80, 76.20, 80.30, 76.40, 77.90)),
        ("column", 0.92): Row(79.56, (82.04, 80.90, 76.30, 80.60, 77.10, 80.40)),
        ("filter", 0.0): Row(59.91, (79.95, 56.50, 50.40, 62.20, 54.60, 55.80)),
        ("filter", 1.0): Row(63.43, (79.95, 60.20, 60.00, 60.40, 58.90, 61.10)),
        ("filter", 0.92): Row(68.11, (79.95, 62.10, 61.70, 67.70, 66.50, 70.70)),
    },
    "split-rf": {
        ("irregular", 0.0): Row(78.49, (78.33, 75.14, 83.74, 82.19, 73.03)),
        ("irregular", 1.0): Row(79.88, (78.33, 75.14, 84.01, 79.71, 82.20)),
        ("irregular", 0.9): Row(80.55, (78.33, 74.21, 84.56, 83.00, 82.65)),
        ("column", 0.0): Row(80.61, (78.33, 77.33, 83.29, 81.90, 82.20)),
        ("column", 1.0): Row(81.17, (78.33, 77.59, 84.93, 81.90, 83.12)),
        ("column", 0.9): Row(81.22, (78.33, 77.55, 84.19, 82.63, 83.39)),
        ("filter", 0.0): Row(78.66, (77.59, 70.32, 82.64, 80.36, 82.39)),
        ("filter", 1.0): Row(79.49, (77.59, 73.65, 82.90, 80.44, 82.85)),
        ("filter", 0.9): Row(80.12, (77.59, 74.54, 83.64, 81.72, 83.12)),
    },
    "mixed": {("irregular", 0.0): Row(88.23), ("irregular", 0.2): Row(89.22), ("irregular", 1.0): Row(88.15)},
}

# Fig. 7, as far as the text gives numbers: by the share of the network that all tasks together own.
CAPACITY: dict[str, dict[float, Row]] = {"split-cifar": {0.5: Row(75.32), 1.0: METHODS["split-cifar"]["lps"]}}
