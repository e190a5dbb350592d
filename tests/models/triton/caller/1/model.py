"""Asks another model of the server, whose name is an input."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        name = pb_utils.get_input_tensor_by_name(request, "MODEL").as_numpy()[0]
        inputs = [pb_utils.get_input_tensor_by_name(request, each) for each in ("INPUT0", "INPUT1")]
        asked = pb_utils.InferenceRequest(model_name=name, requested_output_names=["OUTPUT0"], inputs=inputs)
        response = asked.exec()
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        return pb_utils.InferenceResponse(output_tensors=response.output_tensors())
