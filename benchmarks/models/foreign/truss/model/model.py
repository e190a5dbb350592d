"""The same as a Truss."""


class Model:
    def predict(self, inputs):
        return {"output": inputs["input"] + 1}
