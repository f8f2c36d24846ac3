"""What a hostile or broken peer may send, and that it costs nobody else anything.

`frames` writes what is sent; `world` sends it to the dispatcher's core, without processes; `live` to every socket of a
real cluster; `planted` are faults that the fuzzer must find. A seed is a whole attack: it is all that is needed to see
it again. `make test` does a little of this, `make fuzz` a lot.
"""
