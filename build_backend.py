"""The build backend: that of setuptools, which asks for the compiler of the package ziglang where the machine has none."""

import os
import shutil
import sysconfig

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 (the hooks that stay as they are)


def c_compiler() -> str | None:
    """Return the command of this machine's C compiler: the one in CC, the one that made this Python, or another; None if it has none."""
    commands = (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang")
    return next((each for each in commands if each and shutil.which(each.split()[0])), None)


def compiler_packages() -> list[str]:
    """Return the packages that bring a C compiler to a machine without one."""
    return [] if c_compiler() else ["ziglang"]


def get_requires_for_build_wheel(config_settings: dict[str, str] | None = None) -> list[str]:
    """Return what has to be installed before a wheel is built."""
    return build_meta.get_requires_for_build_wheel(config_settings) + compiler_packages()


def get_requires_for_build_editable(config_settings: dict[str, str] | None = None) -> list[str]:
    """Return what has to be installed before an editable installation is built."""
    return build_meta.get_requires_for_build_editable(config_settings) + compiler_packages()
