"""The ClientApp."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.metrics import log_loss

import dapfl.flower
from digits_sklearn.task import CLASSES, load_data, make_model, set_weights, weights_of

app = ClientApp(mods=[dapfl.flower.mod()])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Trains the model on this node's data."""
    model = make_model(context.run_config["lr"])
    set_weights(model, message.content["arrays"].to_numpy_ndarrays())
    images, labels = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    for _ in range(context.run_config["local-epochs"]):
        model.partial_fit(images, labels, classes=CLASSES)
    loss = log_loss(labels, model.predict_proba(images), labels=CLASSES)
    metrics = MetricRecord({"train_logloss": float(loss), "num-examples": len(labels)})
    return Message(
        RecordDict({"arrays": ArrayRecord(weights_of(model)), "metrics": metrics}), reply_to=message
    )


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Tests the model on this node's data."""
    model = make_model()
    set_weights(model, message.content["arrays"].to_numpy_ndarrays())
    images, labels = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    metrics = MetricRecord(
        {
            "test_logloss": float(log_loss(labels, model.predict_proba(images), labels=CLASSES)),
            "accuracy": float(model.score(images, labels)),
            "num-examples": len(labels),
        }
    )
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
