#!/bin/sh
# An endpoint of Vertex AI. The image is one of Artifact Registry.
# Needs gcloud, with a project: gcloud config set project NAME. Each run makes a new version of the model,
# and gives it all requests.
set -eu
region=us-central1
find() { gcloud ai "$1" list --region="$region" --filter=displayName=digits --limit=1 --format='value(name)'; }

if [ -z "$(find endpoints)" ]; then
  gcloud ai endpoints create \
    --region="$region" \
    --display-name=digits
fi
parent=$(find models)
gcloud ai models upload ${parent:+--parent-model="$parent"} \
  --region="$region" \
  --display-name=digits \
  --container-image-uri=registry.example.com/digits:1 \
  --container-command=geartrain \
  --container-args=serve,/models,--model-name=digits,--api=vertex,--host=0.0.0.0,--port=8080,--drain-delay=5s,--shutdown-grace=30s,--restart=on-crash,--log-format=json \
  --container-ports=8080 \
  --container-predict-route=/predict \
  --container-health-route=/health
gcloud ai endpoints deploy-model "$(find endpoints)" --model="$(find models)" \
  --region="$region" \
  --display-name=digits \
  --machine-type=n1-standard-4 \
  --min-replica-count=1 \
  --max-replica-count=4 \
  --traffic-split=0=100
