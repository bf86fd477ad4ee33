"""Training that outlives its sessions."""
