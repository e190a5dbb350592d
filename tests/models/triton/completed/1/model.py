"""A model that declares its tensors itself, without a config.pbtxt."""

import triton_python_backend_utils as pb_utils

from . import doubling


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        config = auto_complete_model_config
        config.add_input({"name": "x", "data_type": "TYPE_FP64", "dims": [2, -1]})
        config.add_output({"name": "y", "data_type": "TYPE_FP64", "dims": [2, -1]})
        config.set_max_batch_size(4)
        config.set_dynamic_batching()
        return config

    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "x") for request in requests]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("y", doubling.double(each))]) for each in tensors
        ]
