"""Why a container cannot start, in kubelet's own terms."""


class ContainerConfigError(Exception):
    """A container cannot be started as its manifest has it; the text names the field and the
    remedy.
    """
