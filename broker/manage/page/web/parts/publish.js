// The form for publishing a message.

import { h } from "./dom.js";
import { change } from "./api.js";
import { ask } from "./dialog.js";
import { area, field, jsonObject, select } from "./form.js";
import { exchangeName } from "./format.js";
import { quantity } from "./quantity.js";
import { toast } from "./toast.js";

/** Ask for a message and publish it to an exchange; `queue` fills the routing key of the default exchange. */
export function publishing({ vhost, exchange, queue }) {
  const isDefault = exchange === "";
  return ask({
    title: queue === undefined ? `Publish to ${exchangeName(exchange)}` : `Publish to queue ${queue}`,
    action: "Publish",
    wide: true,
    body: [
      h(
        "div",
        { class: "fields" },
        field("Routing key", "routing_key", { value: queue ?? "", readOnly: queue !== undefined, maxlength: 255 }),
        select("Delivery", "delivery_mode", [["2", "Persistent"], ["1", "Transient"]]),
        field("Content type", "content_type", { placeholder: "application/json" }),
      ),
      area("Body", "payload", { rows: 7, autofocus: true }),
      h(
        "div",
        { class: "fields" },
        select("Body is", "payload_encoding", [["string", "Text"], ["base64", "Base64"]]),
        field("Priority", "priority", { type: "number", min: 0, max: 255 }),
        field("Expires after", "expiration", { placeholder: "30s" }),
      ),
      area("Headers, as a JSON object", "headers", { rows: 2, placeholder: "{\"trace\": \"a1\"}" }),
    ],
    submit: async (form) => {
      const properties = { delivery_mode: Number(form.delivery_mode) };
      if (form.content_type) properties.content_type = form.content_type;
      if (form.priority !== "") properties.priority = Number(form.priority);
      if (form.expiration) properties.expiration = String(quantity(form.expiration, "ms", "Expires after"));
      const headers = jsonObject(form.headers, "Headers");
      if (Object.keys(headers).length) properties.headers = headers;
      const answer = await change("POST", ["exchanges", vhost, isDefault ? "amq.default" : exchange, "publish"], { routing_key: form.routing_key, properties, payload: form.payload, payload_encoding: form.payload_encoding });
      if (answer?.routed === false) throw new Error("The message was published but reached no queue: no binding matches this routing key.");
      toast("Published");
    },
  });
}
