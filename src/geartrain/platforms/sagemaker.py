"""A template of CloudFormation for an endpoint of SageMaker. Source: AWS's reference of AWS::SageMaker resources."""

from __future__ import annotations

from typing import Any, Final

from geartrain.platforms.manifest import Noted, noted
from geartrain.platforms.spec import DeploymentSpec
from geartrain.project.errors import ProjectError

DEFAULT_INSTANCE: Final = "ml.m5.xlarge"
_VARIANT: Final = "AllTraffic"
_ARCHIVE: Final = ".tar.gz"
_STARTUP: Final = 600  # seconds until the first answer to GET /ping
_CONCURRENT: Final = 4  # requests of one instance that more instances are started for


def sagemaker_template(spec: DeploymentSpec, instance: str) -> list[Noted]:
    """Return the template; raises ProjectError for models that are neither in the image nor in S3."""
    stack = spec.name
    template = {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"An endpoint of {', '.join(spec.models)}",
        "Parameters": {
            "Role": {
                "Type": "String",
                "Description": "ARN of the role of the endpoint: it may read the image, and S3 if the models are there",
            }
        },
        "Resources": {
            "Model": _resource(
                "SageMaker::Model",
                ExecutionRoleArn={"Ref": "Role"},
                PrimaryContainer={"Image": spec.image, **_data(spec), "Environment": {"LOG_FORMAT": "json"}},
            ),
            "Config": _resource(
                "SageMaker::EndpointConfig",
                ProductionVariants=[
                    {
                        "VariantName": _VARIANT,
                        "ModelName": _attribute("Model", "ModelName"),
                        "InstanceType": instance,
                        "InitialInstanceCount": spec.replicas,
                        "InitialVariantWeight": 1.0,
                        "ContainerStartupHealthCheckTimeoutInSeconds": noted(_STARTUP, "Setup may take ten minutes."),
                    }
                ],
            ),
            "Endpoint": _resource(
                "SageMaker::Endpoint",
                EndpointName=spec.name,
                EndpointConfigName=_attribute("Config", "EndpointConfigName"),
            ),
            **({} if spec.max_replicas == spec.replicas else _scaling(spec)),
        },
        "Outputs": {"Endpoint": {"Value": _attribute("Endpoint", "EndpointName")}},
    }
    return [
        noted(
            template,
            "An endpoint of SageMaker. The image is one of Amazon ECR, made by `geartrain build`: it has the program",
            "`serve`, which SageMaker starts.",
            f"  aws cloudformation deploy --stack-name {stack} --template-file FILE --parameter-overrides Role=ARN",
            f"  aws sagemaker-runtime invoke-endpoint --endpoint-name {spec.name} --content-type application/json \\",
            "    --cli-binary-format raw-in-base64-out --body '{...}' answer.json",
        )
    ]


def _data(spec: DeploymentSpec) -> dict[str, Any]:
    """Return the place of the models in S3: SageMaker unpacks them at /opt/ml/model."""
    if not spec.storage:
        return {}
    if not spec.storage.startswith("s3://"):
        raise ProjectError(
            f"--storage-uri: SageMaker fetches nothing from {spec.storage}; write s3://BUCKET/PATH, "
            "or put the models into the image with `geartrain build`"
        )
    if spec.storage.endswith(_ARCHIVE):
        return {"ModelDataUrl": spec.storage}
    source = {"S3Uri": f"{spec.storage.rstrip('/')}/", "S3DataType": "S3Prefix", "CompressionType": "None"}
    return {"ModelDataSource": {"S3DataSource": source}}


def _scaling(spec: DeploymentSpec) -> dict[str, Any]:
    """Return the resources that change the number of instances."""
    return {
        "Target": _resource(
            "ApplicationAutoScaling::ScalableTarget",
            ServiceNamespace="sagemaker",
            ScalableDimension="sagemaker:variant:DesiredInstanceCount",
            ResourceId={"Fn::Sub": f"endpoint/${{Endpoint.EndpointName}}/variant/{_VARIANT}"},
            MinCapacity=spec.replicas,
            MaxCapacity=spec.max_replicas,
        ),
        "Policy": _resource(
            "ApplicationAutoScaling::ScalingPolicy",
            PolicyName=f"{spec.name}-requests",
            PolicyType="TargetTrackingScaling",
            ScalingTargetId={"Ref": "Target"},
            TargetTrackingScalingPolicyConfiguration={
                "PredefinedMetricSpecification": {
                    "PredefinedMetricType": "SageMakerVariantConcurrentRequestsPerModelHighResolution"
                },
                "TargetValue": noted(_CONCURRENT, "Requests at once of each instance: change it to what one can do."),
            },
        ),
    }


def _resource(kind: str, **properties: Any) -> dict[str, Any]:
    return {"Type": f"AWS::{kind}", "Properties": properties}


def _attribute(resource: str, name: str) -> dict[str, Any]:
    return {"Fn::GetAtt": [resource, name]}
