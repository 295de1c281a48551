// mqtt: `mqtt.mjs subscribe|publish|read PORT NAME [COUNT]`; `publish` says what was acknowledged.
import mqtt from 'mqtt'

const [command, port, name, count] = process.argv.slice(2)
const wanted = new Set(Array.from({ length: Number(count) }, (_, index) => index + 1))
const client = mqtt.connect(`mqtt://guest:guest@127.0.0.1:${port}`, {
  clientId: `${name}-${command === 'publish'}`,
  protocolVersion: 5,
  clean: false,
  properties: { sessionExpiryInterval: 3600 },
  reconnectPeriod: 0,
})
client.on('message', (_topic, body) => {
  wanted.delete(Number(body))
  if (wanted.size === 0) client.end()
})
if (command === 'subscribe') {
  await client.subscribeAsync(name, { qos: 1 })
  await client.endAsync()
} else if (command === 'publish') {
  for (let number = 1; ; number++) {
    await client.publishAsync(name, String(number), { qos: 1 })
    console.log(number)
  }
}
