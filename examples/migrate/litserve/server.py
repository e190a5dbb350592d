import json
import math

import litserve


class Iris(litserve.LitAPI):
    def setup(self, device):
        with open("centroids.json") as file:
            self.centroids = json.load(file)

    def decode_request(self, request):
        return request["petal"]

    def predict(self, petal):
        distances = {label: math.dist(petal, centroid) for label, centroid in self.centroids.items()}
        label = min(distances, key=distances.get)
        return label, distances[label]

    def encode_response(self, output):
        label, distance = output
        return {"label": label, "distance": round(distance, 3)}


if __name__ == "__main__":
    server = litserve.LitServer(Iris(), accelerator="cpu")
    server.run(port=8000)
