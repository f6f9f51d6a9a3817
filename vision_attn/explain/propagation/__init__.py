"""Carry one row of attention through the layers, from the readout back to the patches."""
