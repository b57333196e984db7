"""Hospital wards that predict together whether a patient comes back, without showing their records."""
