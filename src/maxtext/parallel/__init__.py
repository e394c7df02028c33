"""The sharding of everything: mesh, layout, weight specs, stacks of layers."""
