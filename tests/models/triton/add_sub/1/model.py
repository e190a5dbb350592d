"""Sum and difference of two inputs, in the datatypes that the configuration has."""

import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Adds and subtracts."""

    def initialize(self, args):
        self.config = config = json.loads(args["model_config"])
        self.types = [
            pb_utils.triton_string_to_numpy(pb_utils.get_output_config_by_name(config, name)["data_type"])
            for name in ("OUTPUT0", "OUTPUT1")
        ]
        self.args = args
        assert not pb_utils.using_decoupled_model_transaction_policy(config)

    def execute(self, requests):
        responses = []
        for request in requests:
            in_0 = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            in_1 = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            out_0 = pb_utils.Tensor("OUTPUT0", (in_0 + in_1).astype(self.types[0]))
            out_1 = pb_utils.Tensor("OUTPUT1", (in_0 - in_1).astype(self.types[1]))
            told = {"config": self.config["name"], **{key: self.args[key] for key in ("model_name", "model_version")}}
            response = pb_utils.InferenceResponse(output_tensors=[out_0, out_1])
            if json.loads(request.parameters()).get("tell"):
                told |= {"id": request.request_id(), "correlation": request.correlation_id(), "flags": request.flags()}
                told["wanted"] = ",".join(request.requested_output_names())
                response = pb_utils.InferenceResponse([out_0, out_1], parameters=told)
            responses.append(response)
        return responses

    def finalize(self):
        print("add_sub is finalized")
