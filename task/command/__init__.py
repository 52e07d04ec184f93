"""The command `grpo-ma`, and the check that the packages of one checkout are imported together."""
