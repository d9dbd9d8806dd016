# The operator's image. Build it in the repository's root:
#   docker build -t ddp-operator .
# docs/how-to/verify-a-release.md has the command that gives the same digest on every machine.
# For another base image: docker build --build-context base=docker-image://IMAGE …
FROM python:3.11-slim-bookworm@sha256:0bee7276f83efd4a1ee05bbbf4281d95ed28e079220a9457f25a93e3f1e3c31b AS base

FROM base AS dependencies
# A build without network sets PIP_NO_INDEX=1, and PIP_FIND_LINKS to a folder of wheels.
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
# pip stays in an environment of its own. Only wheels: building from source would fetch build tools
# that have no hash.
RUN python -m venv /pip && python -m venv --without-pip /app
COPY requirements/operator.txt /src/requirements.txt
RUN /pip/bin/pip --python /app/bin/python install --no-cache-dir --no-compile \
      --only-binary=:all: --require-hashes --requirement /src/requirements.txt
# The root file system is read-only, so Python cannot keep what it compiles. Compiled files with a
# time stamp would differ from build to build.
RUN PYTHONHASHSEED=0 /app/bin/python -m compileall -qq -f --invalidation-mode unchecked-hash /app

FROM dependencies AS project
COPY protocol/ddp_protocol /project/ddp_protocol
COPY operator/ddp_operator /project/ddp_operator
# `launcher: inject` copies this into pods of any image. The operator itself does not run it.
COPY trainer-image/inject /launcher
COPY trainer-image/ddp_trainer /launcher/ddp_trainer
COPY protocol/ddp_protocol /launcher/ddp_protocol
# Modes in a checkout depend on the umask.
RUN chmod -R u=rwX,go=rX /project /launcher \
 && PYTHONHASHSEED=0 /app/bin/python -m compileall -qq -f --invalidation-mode unchecked-hash /project

FROM base
# The operator installs nothing: remove the base image's pip, setuptools and wheel.
RUN rm -rf /usr/local/lib/python3*/site-packages /usr/local/lib/python3*/ensurepip /usr/local/bin/pip*
# Several layers, so that a change of the operator's code keeps the layer of its dependencies.
COPY --from=dependencies /app /app
COPY --from=project /project /project
COPY --from=project /launcher /launcher
ENV PATH=/app/bin:$PATH \
    PYTHONPATH=/project \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["python", "-m", "ddp_operator"]
CMD ["run"]
