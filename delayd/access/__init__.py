"""Who may do what: tokens and their scopes, peers of unix sockets, certificates.

    AccessControl ─► Authenticator ─► Tokens ─► Principal ─► may(scope, topic)?
             └─► TLS contexts of the line and of HTTP

The service opens one `AccessControl`; both front ends ask its `Authenticator` who a client is, and
the `Principal` what the client may do.
"""
