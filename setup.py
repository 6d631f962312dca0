"""The build, but for what pyproject.toml says: the sample data travel in the package, for `calib demo`."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

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


setup(cmdclass={"build_py": WithSamples})
