from cog import BasePredictor


class CommonPredictor(BasePredictor):
    separator = "-"

    def setup(self):
        self.calls = 0

    def predict(self, **kwargs):
        self.calls += 1
        return self.separator.join([kwargs["prompt"]] * kwargs["times"])
