from typing import List, Union

from cog import BasePredictor, Input


class Predictor(BasePredictor):
    def predict(self, count: int = Input(ge=1, le=10, default=1)) -> Union[str, List[str]]:
        pictures = [f"picture {number}" for number in range(count)]
        return pictures[0] if count == 1 else pictures
