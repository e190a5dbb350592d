"""The same for SageMaker."""

import json


def model_fn(model_dir):
    return 1


def input_fn(body, content_type):
    return json.loads(body)["input"]


def predict_fn(value, model):
    return value + model


def output_fn(value, accept):
    return json.dumps({"output": value}), accept
