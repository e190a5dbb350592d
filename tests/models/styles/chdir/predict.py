import os
import tempfile

from cog import BasePredictor, Path


class Predictor(BasePredictor):
    def setup(self):
        os.chdir(tempfile.mkdtemp())
        with open("prefix.txt", "w") as opened:
            opened.write("read: ")

    def predict(self, document: Path) -> Path:
        with open("prefix.txt") as prefix, open("out.txt", "w") as out:
            out.write(prefix.read() + document.read_text())
        return Path("out.txt")
