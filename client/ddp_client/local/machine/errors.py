"""Why a container cannot start, in the kubelet's terms."""


class ContainerConfigError(Exception):
    """A container cannot start with its present manifest. The text names the field and
    the remedy.
    """
