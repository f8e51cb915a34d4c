"""The HTTP API: the operations of the core, in the conventions that HTTP clients expect.

    accept, connections, server     connections, requests in order, deadlines, start and stop
    request_reader, bounds          requests in bytes, and how much there may be of what
    routing, admission              the way of a request to its handler
    routes, openapi                 the table of calls, and the document made of it
    bodies, form_reader             from bytes to a form, or to all that is wrong
    request_forms, values           the contents of requests
    answer_forms, problems, responses       answers
    api, idempotency, handlers/     what the handlers share, and the handlers

A handler runs between two turns: it asks the engine, which answers at once, and then waits until
the next turn has made the change durable. What HTTP answers is on disk.
"""
