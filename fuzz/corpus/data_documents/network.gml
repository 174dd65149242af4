# Made up: four places on a ring, one of them with a link to itself.
graph [
  directed 0
  node [
    id 0
    label "harbour"
    country_code "NL"
    host_bandwidth_up "100 Mbit"
    host_bandwidth_down "1 Gbit"
  ]
  node [
    id 1
    country_code "DE"
  ]
  node [
    id 2
    country_code "US"
    graphics [ x 1.5 y 2 ]
  ]
  node [
    id 3
  ]
  edge [
    source 0
    target 0
    latency "2 ms"
  ]
  edge [
    source 0
    target 1
    latency "6 ms"
    jitter "500 us"
    packet_loss 0.001
  ]
  edge [
    source 1
    target 2
    latency "45 ms"
    packet_loss 0.0
  ]
  edge [
    source 2
    target 3
    latency "30 ms"
  ]
  edge [
    source 3
    target 0
    latency "0.02 s"
  ]
]
