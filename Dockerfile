# The launcher, TensorFlow and the examples:
#
#     docker build -t tf-launcher .
#     docker run --rm tf-launcher --ps 2 --workers 2 --flags examples/mnist_dist/mnist_dist.py
#     launch --docker tf-launcher --ps 2 --workers 2 --flags examples/mnist_dist/mnist_dist.py
#
# Layers come in the order in which they change: what takes long is made once.
ARG BASE=python:3.11-slim
FROM ${BASE}

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
    XDG_CACHE_HOME=/opt/cache
WORKDIR /opt/tf-launcher
# The releases that are installed.
COPY constraints.txt ./
RUN pip install --quiet --constraint constraints.txt tensorflow-cpu
# MNIST, so that the examples need no network; readable for whoever the container runs as.
COPY examples/mnist_dist/data.py examples/mnist_dist/idx.py examples/mnist_dist/sources.py /tmp/mnist/
RUN python /tmp/mnist/data.py && rm -r /tmp/mnist && chmod -R a+rX /opt/cache
COPY pyproject.toml /tmp/requirements/
RUN python -c "import tomllib; print(*tomllib.load(open('/tmp/requirements/pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
      > /tmp/requirements/all.txt \
    && pip install --quiet --constraint constraints.txt -r /tmp/requirements/all.txt && rm -r /tmp/requirements

COPY LICENSE README.md pyproject.toml setup.py ./
COPY launcher launcher
RUN pip install --quiet --no-deps . && rm -rf build *.egg-info
COPY examples examples
COPY hostfiles hostfiles
RUN useradd --create-home launcher
USER launcher
ENTRYPOINT ["launch"]
