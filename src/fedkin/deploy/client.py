"""The ClientApp. Errors go back as data, so that the server's history can say what happened where."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedkin.deploy import codec

app = ClientApp()


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    from fedkin.deploy.site import SiteConfig, introduce, unable

    try:
        agreed = codec.decode_text(message.content) if message.content else ""
        info = introduce(SiteConfig.read(context.node_config), agreed)
    except Exception as error:
        info = unable(str(context.node_config.get("name", "")), error)
    return Message(codec.encode_info(info), reply_to=message)


@app.query("statistics")
def statistics(message: Message, context: Context) -> Message:
    """Statistics of this site's table, as far as its own file allows sharing them."""
    from fedkin.deploy import site

    config = site.SiteConfig.read(context.node_config)
    try:
        content = codec.encode_text(site.statistics(config, codec.decode_text(message.content)))
    except Exception as error:
        content = codec.encode_info(site.unable(config.name, error))
    return Message(content, reply_to=message)


@app.train()
def task(message: Message, context: Context) -> Message:
    from fedkin.deploy.site import SiteConfig, answer

    config = SiteConfig.read(context.node_config)
    return Message(answer(config, context.run_config, message.content), reply_to=message)
