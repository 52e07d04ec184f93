"""Memory of a training process, estimated from a model's config and a recipe."""
