import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

import bivouac

HERE = Path(__file__).resolve().parent.parent

BUILD = "import setuptools.build_meta as b; b.build_wheel('dist'); b.build_sdist('dist')"


class PackageTest(unittest.TestCase):
    def test_wheel_and_sdist(self) -> None:
        """They can be built, are typed, and the wheel can be imported from elsewhere."""
        with tempfile.TemporaryDirectory() as tmp:
            work = Path(tmp, "src")
            work.mkdir()
            for name in ("pyproject.toml", "README.md"):
                shutil.copy(HERE / name, work)
            shutil.copytree(HERE / "bivouac", work / "bivouac")
            subprocess.run([sys.executable, "-c", BUILD], cwd=work, check=True, capture_output=True)
            wheel = work / "dist" / f"bivouac-{bivouac.__version__}-py3-none-any.whl"
            names = zipfile.ZipFile(wheel).namelist()
            for want in ("bivouac/py.typed", "bivouac/torch/__init__.py", "bivouac/_control.py"):
                self.assertIn(want, names)
            self.assertTrue((work / "dist" / f"bivouac-{bivouac.__version__}.tar.gz").exists())
            code = f"import sys; sys.path.insert(0, {str(wheel)!r}); import bivouac; print(bivouac.__file__)"
            out = subprocess.run([sys.executable, "-c", code], cwd=tmp, check=True, capture_output=True, text=True)
            self.assertTrue(out.stdout.startswith(str(wheel)), out.stdout)
