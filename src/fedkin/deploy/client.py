"""The ClientApp. Errors go back as data, so that the server's history can say what happened where."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedkin.deploy import codec

app = ClientApp()


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    from fedkin.deploy.site import SiteConfig, introduce

    try:
        info = introduce(SiteConfig.read(context.node_config))
    except Exception as error:
        name = str(context.node_config.get("name", ""))
        info = codec.SiteInfo(name, "", "", "", 0, 0, 0, 0, f"{type(error).__name__}: {error}")
    return Message(codec.encode_card(info), reply_to=message)


@app.train()
def task(message: Message, context: Context) -> Message:
    from fedkin.deploy.plan import read
    from fedkin.deploy.site import SiteConfig, perform, refused

    config = SiteConfig.read(context.node_config)
    try:
        request, content = codec.decode_request(message.content)
        answer, outcome = perform(config, read(context.run_config), request, content)
        if outcome.trace:
            print(outcome.trace)  # in the site's own log; the server is told the last line alone
        record = codec.encode_answer(answer, outcome.body, outcome.scores)
    except Exception as error:
        record = codec.encode_answer(refused(config, error), (), {})
    return Message(record, reply_to=message)
