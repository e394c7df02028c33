"""Pure array functions; they know no mesh and no config."""
