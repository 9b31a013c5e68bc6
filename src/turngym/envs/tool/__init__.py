"""Environments in which the policy acts through tools: `calling` is their base, `toolbox` and `tools` what it stands on."""
