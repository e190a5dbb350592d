#!/bin/sh
# A managed online endpoint of Azure ML. The image is one of Azure's container registry, or a public one.
# Needs az with the extension ml, and a workspace: az configure --defaults group=GROUP workspace=NAME
set -eu
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT

cat >"$folder/endpoint.yml" <<'END'
$schema: https://azuremlschemas.azureedge.net/latest/managedOnlineEndpoint.schema.json
name: digits
# Or aml_token, aad_token.
auth_mode: key
END

cat >"$folder/deployment.yml" <<'END'
$schema: https://azuremlschemas.azureedge.net/latest/managedOnlineDeployment.schema.json
name: blue
endpoint_name: digits
environment:
  image: registry.example.com/digits:1
  inference_config:
    liveness_route: {port: 5000, path: /livez}
    readiness_route: {port: 5000, path: /readyz}
    scoring_route: {port: 5000, path: /score}
environment_variables: {GEARTRAIN_API: azure, PORT: '5000', LOG_FORMAT: json}
instance_type: Standard_DS3_v2
instance_count: 1
request_settings:
  # At most 180,000.
  request_timeout_ms: 90000
  # Requests above it wait at Azure, or are refused.
  max_concurrent_requests_per_instance: 100
liveness_probe:
  initial_delay: 5
  period: 5
  timeout: 2
  success_threshold: 1
  failure_threshold: 30
readiness_probe:
  initial_delay: 5
  period: 5
  timeout: 2
  success_threshold: 1
  # Setup may take ten minutes.
  failure_threshold: 120
END

az ml online-endpoint show --name digits >/dev/null 2>&1 ||
  az ml online-endpoint create --file "$folder/endpoint.yml"
if az ml online-deployment show --name blue --endpoint-name digits >/dev/null 2>&1; then
  az ml online-deployment update --file "$folder/deployment.yml"
else
  az ml online-deployment create --file "$folder/deployment.yml"
fi
az ml online-endpoint update --name digits --traffic blue=100
