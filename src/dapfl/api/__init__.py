"""The implementation of `import dapfl`: `federations` has its functions, `results` what they return."""
