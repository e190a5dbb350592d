import os

from cog import BasePredictor
from cog.suppress_output import suppress_output


class Predictor(BasePredictor):
    def predict(self, text: str) -> str:
        print("before")
        with suppress_output():
            print("printed")
            os.system("echo from a subprocess")
        print("after")
        return text
