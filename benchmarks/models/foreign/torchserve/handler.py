"""The same for TorchServe."""


def handle(data, context):
    return None if data is None else [{"output": data[0]["body"]["input"] + 1}]
