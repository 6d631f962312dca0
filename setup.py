"""The build, but for what pyproject.toml says: the sample data travel in the package, for `calib demo`.

The links of README.md become absolute, as the page of a package index has no files to link to.
"""

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent))  # which builders take away

from release.address import readme  # noqa: E402

SAMPLES = (
    "digits.npz",
    "square.npz",
    "model.safetensors",
    "model.pt",
    "validation.npz",
    "test.npz",
    "calib.toml",
    "README.md",
)


class WithSamples(build_py):
    """Copies sample_data/, their one source, to calibcli/sample_data/ of the wheel."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            folder = Path(self.build_lib, "calibcli", "sample_data")
            self.mkpath(str(folder))
            for name in SAMPLES:
                self.copy_file(str(Path("sample_data", name)), str(folder / name))


setup(
    cmdclass={"build_py": WithSamples},
    long_description=readme(),
    long_description_content_type="text/markdown",
)
