"""The process group: form it, watch it, break it, and form the next one."""
