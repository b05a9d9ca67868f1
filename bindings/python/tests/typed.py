"""Not run, but checked by mypy: what the types say."""

import evermap

with evermap.open("file", ordered="persistent", keys=str, values=bytes) as db:
    value: bytes = db["key"]
    maybe: bytes | None = db.get("key")
    many: list[bytes | None] = db.get_many(["a", "b"])
    for key, found in db.scan("a", reverse=True):
        print(key.upper(), found.hex())
    users = db.map("users", keys=str, values=str)
    name: str = users["ann"]
    with db.batch() as batch:
        batch["key"] = b"value"
        batch.on(users)["ann"] = "here"
    item = db.item("key")
    if item is not None:
        print(item.value.hex(), item.version + 1)
    view = db.view("key")
    if view is not None:
        print(view.nbytes)
    count: int = db.incr("count")

    @evermap.cache(db, ttl=60)
    def double(number: int) -> int:
        return number * 2

    doubled: int = double(4)
    print(double.cache_info().hits)
    moved: int = db.transaction(lambda transaction: 7)
