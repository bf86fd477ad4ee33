"""Cards: what is there, what they do, and what that means. NVML is read; no framework is loaded."""
