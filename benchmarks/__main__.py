"""``python -m benchmarks``."""

import sys
import warnings


def _run() -> int:
    # The commands say themselves, in one sentence, where the native kernels are missing.
    warnings.filterwarnings("ignore", message="lps_kernels runs on its slow references")
    try:
        from benchmarks.cli import main
    except ImportError as error:
        print(f"python -m benchmarks: {error}", file=sys.stderr)
        return 2
    return main()


if __name__ == "__main__":
    sys.exit(_run())
