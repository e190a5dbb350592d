import torch
from cog import BasePredictor, Input


class Predictor(BasePredictor):
    def setup(self):
        self.layer = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.ones_(self.layer.weight)

    @torch.inference_mode()
    def predict(self, left: float = Input(), right: float = Input(default=1.0)) -> dict:
        result = self.layer(torch.tensor([left, right]))
        return {"sum": result.item(), "inference": result.is_inference()}
