"""Constants fitted on baseline rows and on measured kernels."""
