"""``python -m benchmarks``."""

import sys
import warnings

# The commands say themselves, in one sentence, where the native kernels are missing.
warnings.filterwarnings("ignore", message="lps_kernels runs on its slow references")
try:
    from benchmarks.cli import main
except ImportError as error:
    sys.exit(f"python -m benchmarks: {error}")

if __name__ == "__main__":
    sys.exit(main())
