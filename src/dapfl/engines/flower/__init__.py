"""Flower as an engine: the clients are Flower nodes.

    host         starts Flower's programs for a run, and watches them
    apps         what runs inside Flower's processes: the ServerApp and the ClientApp
    own_app      a Flower app of the user's own, with Dap-FL in two lines of it
    deployment   what a deployment is made of: folders, certificates, keys, commands, the gateway

Imports go from host and own_app to apps to deployment. Nothing is imported here, since every ClientApp
process imports this package, and Flower starts one for each message.
"""
