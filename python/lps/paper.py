"""The numbers that the paper prints (Wang et al., ICDM 2020), in percent: average accuracy over all tasks.

They come from the paper's own budget of epochs (its Table I) on its own splits and are no bound for shorter runs.
"""

from __future__ import annotations

# Table II; its SM, IS and names in capitals are our single, si and names in small letters. Of mixed, section V-B.
METHODS: dict[str, dict[str, float]] = {
    "permuted-mnist": {
        "single": 98.80,
        "ewc": 96.81,
        "si": 97.52,
        "lwf": 68.22,
        "dgr": 90.73,
        "gem": 93.03,
        "packnet": 98.14,
        "lps": 98.58,
    },
    "split-cifar": {
        "single": 75.14,
        "ewc": 71.13,
        "si": 74.97,
        "lwf": 54.68,
        "dgr": 63.61,
        "gem": 66.05,
        "packnet": 77.79,
        "lps": 80.13,
    },
    "split-rf": {
        "single": 81.15,
        "ewc": 37.01,
        "si": 42.63,
        "lwf": 27.75,
        "dgr": 48.27,
        "gem": 68.38,
        "packnet": 79.37,
        "lps": 81.22,
    },
    "mixed": {"lps": 89.22},
}

# Tables V to VII by pattern and share of the earlier tasks' weights that is reused; of mixed, the text on Fig. 6.
SHARES: dict[str, dict[tuple[str, float], float]] = {
    "permuted-mnist": {("irregular", 0.0): 97.15, ("irregular", 1.0): 98.38, ("irregular", 0.9): 98.58},
    "split-cifar": {
        ("irregular", 0.0): 72.30,
        ("irregular", 1.0): 79.10,
        ("irregular", 0.92): 80.13,
        ("column", 0.0): 67.54,
        ("column", 1.0): 78.94,
        ("column", 0.92): 79.56,
        ("filter", 0.0): 59.91,
        ("filter", 1.0): 63.43,
        ("filter", 0.92): 68.11,
    },
    "split-rf": {
        ("irregular", 0.0): 78.49,
        ("irregular", 1.0): 79.88,
        ("irregular", 0.9): 80.55,
        ("column", 0.0): 80.61,
        ("column", 1.0): 81.17,
        ("column", 0.9): 81.22,
        ("filter", 0.0): 78.66,
        ("filter", 1.0): 79.49,
        ("filter", 0.9): 80.12,
    },
    "mixed": {("irregular", 0.0): 88.23, ("irregular", 0.2): 89.22, ("irregular", 1.0): 88.15},
}

# Fig. 7, as far as the text gives numbers: by the share of the network that all tasks together own.
CAPACITY: dict[str, dict[float, float]] = {"split-cifar": {0.5: 75.32, 1.0: 80.13}}
