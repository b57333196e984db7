"""What stands behind `import dapfl`: `federations` runs them, `results` is what comes back."""
