# The operator's image. Build it in the repository's root:
#   docker build -t ddp-operator .
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS dependencies
# A build without network sets PIP_NO_INDEX=1, and PIP_FIND_LINKS to a folder of wheels.
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
ARG PIP_EXTRA_INDEX_URL
RUN python -m venv /app
COPY requirements/operator.txt /src/requirements.txt
RUN /app/bin/pip install --no-cache-dir --require-hashes --requirement /src/requirements.txt

FROM dependencies AS project
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
ARG PIP_EXTRA_INDEX_URL
COPY operator /src/operator
RUN /app/bin/pip install --no-cache-dir --no-deps --target /project /src/operator

FROM ${BASE_IMAGE}
# Two layers, so that a change of the operator's code keeps the layer of its dependencies.
COPY --from=dependencies /app /app
COPY --from=project /project /project
# `launcher: inject` copies this into pods of any image. The operator itself does not run it.
COPY trainer-image/inject /launcher
COPY trainer-image/ddp_trainer /launcher/ddp_trainer
ENV PATH=/app/bin:$PATH \
    PYTHONPATH=/project \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["python", "-m", "ddp_operator"]
CMD ["run"]
