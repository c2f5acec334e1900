// MQTT.js for `tests/mqtt_clients.rs`: `node client.js publish|subscribe URL OPTIONS`, with OPTIONS as JSON:
// version (4 or 5), topic, qos, and payload and retain to publish; count, id, kept and will to subscribe.
// A subscriber prints a line for each message: its QoS, its retain flag, its topic and its payload.

const fs = require('node:fs')
const mqtt = require('mqtt')

const [action, url, text] = process.argv.slice(2)
const options = JSON.parse(text)

function fail (error) {
  console.error(error)
  process.exit(1)
}

const settings = {
  protocolVersion: options.version,
  clean: !options.kept,
  reconnectPeriod: 0,
  keepalive: 30
}
if (options.id) settings.clientId = options.id
if (options.kept && options.version === 5) settings.properties = { sessionExpiryInterval: 60 }
if (options.ca) settings.ca = fs.readFileSync(options.ca)
if (options.will) settings.will = { topic: options.will, payload: Buffer.from('died'), qos: 1, retain: false }

const client = mqtt.connect(url, settings)
client.on('error', fail)

if (action === 'publish') {
  client.on('connect', () => {
    client.publish(options.topic, options.payload, { qos: options.qos, retain: options.retain }, error => {
      if (error) fail(error)
      client.end(false, {}, () => process.exit(0))
    })
  })
} else {
  let count = 0
  client.on('message', (topic, payload, packet) => {
    console.log(`${packet.qos} ${Number(packet.retain)} ${topic} ${payload}`)
    count += 1
    // The acknowledgement of the last one is sent after this.
    if (count === options.count) setImmediate(() => client.end(false, {}, () => process.exit(0)))
  })
  client.on('connect', () => {
    client.subscribe(options.topic, { qos: options.qos }, (error, granted) => {
      if (error || granted.some(each => each.qos !== options.qos)) fail(error || granted)
    })
  })
}
