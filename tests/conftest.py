"""One thread everywhere, so that numbers and timings do not depend on the machine's load."""

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

pytest_plugins = ["keeps_schema"]
